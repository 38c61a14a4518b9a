"""Everything that knows neither models nor data, each file one idea."""
