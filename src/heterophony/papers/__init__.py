"""Published tables and figures: their data as TOML files, their reproduction and their claims."""
