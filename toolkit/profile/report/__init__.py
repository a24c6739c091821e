"""A profile as one self-contained page: inline CSS and SVG, no network, no libraries."""

from toolkit.profile.report.page import render

__all__ = ["render"]
