"""Published tables and figures as TOML files, and their reproduction."""
