"""Parts of algorithms: helpers that one or several algorithm files import."""
