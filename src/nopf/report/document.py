"""The frame of a page: one HTML file that needs no network."""

import html
import importlib.resources


def document(title: str, body: str) -> str:
    """A whole page."""
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{html.escape(title)}</title>
<link rel="icon" href="data:,">
<style>{asset("page.css")}</style>
</head>
<body>
{body}
</body>
</html>
"""


def asset(name: str) -> str:
    """A file that pages hold within themselves."""
    return importlib.resources.files("nopf.report").joinpath(name).read_text()
