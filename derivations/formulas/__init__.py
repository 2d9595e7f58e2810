"""What a certificate is: the constrained minimum of KL, and its closed form, rule by rule."""
