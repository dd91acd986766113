"""The configuration of a run: TOML sections, ``-c`` overrides, defaults and checks."""
