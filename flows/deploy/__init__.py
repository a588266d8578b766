"""Setting up a Prefect server for Overland: what `overland deploy` does."""
