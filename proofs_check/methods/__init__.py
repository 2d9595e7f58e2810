"""Ways of proving and refuting: exact algebra, intervals, optimisers, exact cases."""
