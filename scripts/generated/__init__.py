"""Pages, tables and stubs that are generated from the code; `scripts/generate` writes them."""
