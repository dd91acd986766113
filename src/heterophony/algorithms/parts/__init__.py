"""Parts of algorithms: helpers that one or more algorithm files import."""
