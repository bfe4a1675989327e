"""Facts as stages state them, made into rows of the report's schema."""
