"""The frame of a page: one HTML file that needs no network."""

import base64
import functools
import html
import importlib.resources
import zlib

# Plotly as text is 5 MB of a page; packed it is 2, and every browser of the last years unpacks it.
UNPACK = """
const unpacked = async (id) => {
  const packed = document.getElementById(id).textContent;
  const bytes = Uint8Array.from(atob(packed), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Response(stream).text();
};
"""


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


def packed(name: str, text: str) -> str:
    """A text for a page to unpack with `UNPACK`, by its name. Packed letters end no script."""
    letters = base64.b64encode(zlib.compress(text.encode(), 9)).decode()
    return f'<script type="text/plain" id="{name}">{letters}</script>'


@functools.cache
def packed_plotly() -> str:
    """Plotly, as "plotly"."""
    from plotly.offline import get_plotlyjs  # not all pages have plots

    return packed("plotly", get_plotlyjs())
