"""Reading of XML files."""

import xml.etree.ElementTree as ElementTree
from typing import BinaryIO


def parse_xml(file: BinaryIO) -> ElementTree.Element:
    """Returns the root element of an XML file. Raises ValueError that tells what is wrong, and the fix."""
    try:
        return ElementTree.parse(file).getroot()
    except (ElementTree.ParseError, ValueError, LookupError) as error:
        raise ValueError(f"not valid XML ({error}): export the file again, as UTF-8") from error
