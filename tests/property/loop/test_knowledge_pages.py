import re
import tempfile
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from cadenza.core.files import sha256_bytes
from cadenza.loop.knowledge.observations import (
    MAX_BULLET_CHARS,
    MAX_BULLETS,
    Measurement,
    Observation,
    Rows,
    Subject,
    bounded_lessons,
    own_text,
    page_bytes,
    plain_name,
    read_rows,
    with_own_lessons,
    write_rows,
)
from cadenza.loop.knowledge.pages import MARKER, read_page

fragments = st.lists(
    st.one_of(
        st.sampled_from([
            b"---\n", b"---", b"\n", b"\r\n", b"## Lessons\n", b"## Observations\n", b"name: x\n",
            b"status: replicated\n", b"provenance:\n- run: r\n  cycle: 0\n", b"provenance: null\n",
            b"a: !!int ''\n", b"b: !!timestamp x\n", b"c: !!bool q\n", b"d: !!binary ~\n",
            b"&a [*a]\n", b"h: &x [1]\ni: *x\n", b"&y\n",
            b"e: 2026-99-99\n", b"? [1]\n: 2\n", b"\xff", b"\xef\xbb\xbf", b"...\n", b"{", b"\x00",
            b"f: !!float x\n", b"- x\n", b"<<: 1\n", b"g: \"\\ud800\"\n", b"!!omap [a: 1]\n",
            b"%YAML 9\n",
        ]),
        st.binary(max_size=6),
    ),
    max_size=12,
).map(b"".join)  # fmt: skip


def written(data, subject, rows):
    """Return the page after an ingest that found ``data`` in its place."""
    page = read_page(data)
    own = own_text(page, subject, rows)
    return page_bytes(page, subject, with_own_lessons(rows, subject, page), own)


def plain_words(data):
    return re.findall(rb"[a-z]{3,}", data.replace(b"\r", b"\n"))


@given(data=st.one_of(fragments, st.binary(max_size=200)), below=st.binary(max_size=50))
def test_any_bytes_are_a_page_nothing_is_lost_and_writing_settles(data, below):
    subject = Subject("policy", "x")
    data += f"\n<!-- {MARKER} -->\n".encode() + below
    once = written(data, subject, Rows())
    assert read_page(once).problem is None
    assert written(once, subject, Rows()) == once
    assert read_page(once).below.startswith(below)
    assert set(plain_words(data)) <= {*plain_words(once), b"null", b"replicated"}


names = st.text(max_size=30).map(plain_name)


@given(
    texts=st.lists(st.text(" a_·|\n\x00\ud800", max_size=4), min_size=2, max_size=2, unique=True)
)
def test_names_stay_apart_and_fit_into_a_line(texts):
    one, other = map(plain_name, texts)
    assert one != other or {*texts} == {"", "unnamed"}
    assert plain_name(one) == one
    assert one.isprintable()
    assert not {*one} & {*"·|"}


observations = st.lists(
    st.builds(
        Observation,
        date=st.dates().map(str),
        run=st.sampled_from(["a", "b c", "run · x"]).map(plain_name),
        cycle=st.integers(0, 60),
        suite=names,
        policy=names,
        measured=st.builds(Measurement, st.floats(0.0, 1.0), st.integers(0, 10**6)),
        decision=names.map(lambda name: name.replace(",", "_")),
    ),
    max_size=8,
).map(lambda seen: seen * 2)  # each twice: the second changes nothing


@given(seen=observations, policy=names)
def test_pages_and_rows_are_read_back_and_never_lost(seen, policy):
    rows = Rows()
    for one in seen:
        rows = rows if rows.has(one) else rows.with_observation(one)
    rows = rows.with_lessons({Subject("policy", policy): "- mine"})
    with tempfile.TemporaryDirectory() as folder:
        write_rows(Path(folder), rows)
        assert read_rows(Path(folder)) == rows
        (Path(folder) / "observations.jsonl").unlink()
        for kind in ("policy", "task", "experiment"):
            name = {"policy": "policy", "task": "suite", "experiment": "run"}[kind]
            for one in rows.observations:
                subject = Subject(kind, getattr(one, name))
                page = written(b"", subject, rows)
                assert page.endswith(f"{MARKER} -->\n".encode())  # nothing is taken for a person's
                assert written(page, subject, rows) == page
                edited = page.replace(b"\n# ", b"\nmine\n# ", 1)  # every other line is ours
                assert written(edited, subject, rows) == page + b"\nmine\n"
                file = Path(folder) / f"{kind}-{sha256_bytes(subject.name.encode())}.md"
                file.write_bytes(page)
        assert read_rows(Path(folder)).places() == rows.places()


@given(reply=st.text() | st.lists(st.text("-* <>/abc#\n`1.", max_size=20)).map("\n- ".join))
def test_lessons_of_a_model_are_bounded_bullets(reply):
    bullets = [line for line in bounded_lessons(reply).split("\n") if line]
    assert len(bullets) <= MAX_BULLETS
    for bullet in bullets:
        assert bullet.startswith("- ")
        assert 2 < len(bullet) <= MAX_BULLET_CHARS + 2
        assert bullet.isprintable()
        assert re.search(r"<[A-Za-z/!?]", bullet) is None
