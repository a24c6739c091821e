"""Self-contained HTML pages: inline CSS and SVG, no network, no libraries."""
