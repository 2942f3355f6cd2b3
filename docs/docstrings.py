"""Let the examples of docstrings, flush left as in Keras, be sections of the reference."""

import re
import textwrap

import griffe

_EXAMPLE = re.compile(r"^Example:\n\n(>>>.*?)(?=\n\n[A-Z]|\Z)", re.DOTALL | re.MULTILINE)


class Examples(griffe.Extension):
    """Indent them under a heading that griffe knows."""

    def on_object(self, *, obj, **kwargs):
        """Change the docstring of any object."""
        if obj.docstring:
            obj.docstring.value = _EXAMPLE.sub(
                lambda found: "Examples:\n" + textwrap.indent(found[1], "    "),
                obj.docstring.value,
            )
