"""Pictures of results: figures for paper, and a page for the browser."""
