"""Engines: where jobs run. An engine maps ``work`` over jobs and knows no algorithm."""
