"""Reports on disk: ``three_tables.json``, the record, and ``three_tables.md``, for reading.

Each file is replaced in one durable step, the Markdown first: who sees a new record finds the
text that belongs to it.
"""

from pathlib import Path
from typing import Final

from cadenza.core.errors import InputError, IntegrityError, UnknownNameError
from cadenza.core.files import atomic_write_bytes
from cadenza.core.strict_json import parse_json_object
from cadenza.safety.errors import ReportError
from cadenza.safety.reporting.payload import canonical_text, require_intact
from cadenza.safety.reporting.rendering import render_markdown
from cadenza.safety.reporting.report import ThreeTableReport

#: Names of the files.
JSON_NAME: Final = "three_tables.json"
MARKDOWN_NAME: Final = "three_tables.md"
#: Largest record we read, bytes; a row takes a few hundred.
MAX_REPORT_BYTES: Final = 1 << 24


def report_files(report: ThreeTableReport) -> dict[str, bytes]:
    """Return what `emit_three_tables` writes, by file name."""
    return {
        JSON_NAME: (canonical_text(report.to_document()) + "\n").encode("utf-8"),
        MARKDOWN_NAME: render_markdown(report).encode("utf-8"),
    }


def emit_three_tables(*, out_dir: Path, report: ThreeTableReport) -> tuple[Path, Path]:
    """Write both files of a report; equal reports give equal bytes.

    Args:
        out_dir: Folder, created if it is missing.
        report: What to write.

    Returns:
        Paths of the JSON and of the Markdown file.

    Raises:
        StorageError: The file system refused; each file is whole, old or new.
    """
    json_path, markdown_path = out_dir / JSON_NAME, out_dir / MARKDOWN_NAME
    files = report_files(report)
    atomic_write_bytes(markdown_path, files[MARKDOWN_NAME])
    atomic_write_bytes(json_path, files[JSON_NAME])
    return json_path, markdown_path


def parse_three_tables(json_path: Path, *, require_hash: bool = True) -> ThreeTableReport:
    """Return a stored report of any known version, checked against its hashes.

    Args:
        json_path: What `emit_three_tables` wrote.
        require_hash: Refuse a file without hash.

    Raises:
        ReportError: Not strict JSON, an unknown version, a missing or wrong hash, or malformed
            rows.
        OSError: The file cannot be read.
    """
    if json_path.stat().st_size > MAX_REPORT_BYTES:
        raise ReportError(
            f"{json_path}: expected a report of at most {MAX_REPORT_BYTES} bytes, got "
            f"{json_path.stat().st_size}."
        )
    return parse_report(json_path.read_bytes(), source=json_path.name, require_hash=require_hash)


def parse_report(data: bytes, *, source: str, require_hash: bool = True) -> ThreeTableReport:
    """Return the report that ``data`` holds; see `parse_three_tables`.

    Args:
        data: Bytes of a stored report.
        source: How messages call it.
        require_hash: Refuse a report without hash.

    Raises:
        ReportError: As `parse_three_tables`.
    """
    try:
        document = parse_json_object(data, source=source)
    except IntegrityError as error:
        raise ReportError(str(error)) from error
    require_intact(document, require_hash=require_hash, source=source)
    try:
        return ThreeTableReport.from_jsonable(document, source=source)
    except (InputError, UnknownNameError) as error:
        raise ReportError(f"{source}: {error}") from error


def verify_markdown(markdown_path: Path, json_path: Path) -> None:
    """Raise unless the text is, byte for byte, the one of the record.

    Raises:
        ReportError: It differs, or the record does not pass `parse_three_tables`.
        OSError: A file cannot be read.
    """
    expected = render_markdown(parse_three_tables(json_path))
    if markdown_path.read_bytes() != expected.encode("utf-8"):
        raise ReportError(
            f"{markdown_path.name}: expected the text of {json_path.name}, got another; one of "
            "them was changed, write both anew with emit_three_tables."
        )
