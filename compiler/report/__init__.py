"""The report: in come events, out comes a CompileReport, plain data with a versioned schema.

builder.py listens to events and builds a report; schema.py is the data; json.py and payload.py are its JSON;
plain_text.py its plain text. Drawing for notebooks lives in kernel_magics, which this package does not know.
"""

from .report import CompileReport, set_renderer
from .schema import MIME, SCHEMA, VERSION

__all__ = ["CompileReport", "set_renderer", "MIME", "SCHEMA", "VERSION"]
