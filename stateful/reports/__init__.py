"""Reports for others to read: JUnit XML, SARIF, one HTML page, and the pool as an SVG picture.

Each is a function from a `Report`, or from counterexamples, to text; a report itself knows none
of them.
"""

from pagedkv.stateful.reports.junit import junit_xml
from pagedkv.stateful.reports.page import html_page
from pagedkv.stateful.reports.picture import first_history, svg_picture
from pagedkv.stateful.reports.sarif import Place, Source, sarif_json

__all__ = [
    "Place",
    "Source",
    "first_history",
    "html_page",
    "junit_xml",
    "sarif_json",
    "svg_picture",
]
