"""The pages of the site: copied from the documents, or generated from the code."""
