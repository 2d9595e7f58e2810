"""What several tests share: small pairs, written logs, exact rows."""
