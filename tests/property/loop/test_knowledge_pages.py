import re

from hypothesis import given
from hypothesis import strategies as st

from cadenza.loop.knowledge.observations import (
    Observation,
    Observations,
    measurement,
    plain_name,
    read_observations,
)
from cadenza.loop.knowledge.pages import Page, Section, read_page, write_page
from cadenza.loop.knowledge.updates import MAX_BULLET_CHARS, MAX_BULLETS, bounded_lessons

line = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\n\r"), max_size=30)
words = st.text("ab -·#:|'\"\\>{[&*!%@é", max_size=12)
scalars = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), words,
    st.text(max_size=20), st.dates(), st.binary(max_size=5),
)  # fmt: skip
metas = st.dictionaries(
    words,
    st.recursive(
        scalars,
        lambda s: st.lists(s, max_size=3) | st.dictionaries(words, s, max_size=3),
        max_leaves=6,
    ),
    max_size=5,
)
body = st.lists(line.filter(lambda t: not t.startswith("## ")), max_size=4).map(
    lambda lines: "\n".join(lines).strip("\n")
)
pages = st.builds(
    Page,
    meta=metas,
    preamble=body,
    sections=st.lists(st.builds(Section, line.map(str.rstrip), body), max_size=4).map(tuple),
)
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


@given(data=st.one_of(fragments, st.binary(max_size=200)))
def test_any_bytes_are_read_and_writing_settles(data):
    written = write_page(read_page(data))
    again = read_page(written)
    assert write_page(again) == written
    assert read_page(write_page(again)) == again or "nan" in written.decode().lower()


@given(page=pages)
def test_what_is_written_is_read(page):
    assert read_page(write_page(page)) == page


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
        measured=st.builds(measurement, st.floats(0.0, 1.0), st.integers(0, 10**6)),
        decision=names.map(lambda name: name.replace(",", "_")),
    ),
    max_size=8,
).map(lambda seen: seen * 2)  # each twice: the second changes nothing


@given(seen=observations)
def test_observations_are_read_back_and_never_lost(seen):
    found = Observations()
    for one in seen:
        found = found.with_observation(one)
    assert read_observations(found.text()) == found
    assert all(found.has(one.run, one.cycle) for one in seen)


@given(reply=st.text() | st.lists(st.text("-* <>/abc#\n`1.", max_size=20)).map("\n- ".join))
def test_lessons_of_a_model_are_bounded_bullets(reply):
    bullets = [line for line in bounded_lessons(reply).split("\n") if line]
    assert len(bullets) <= MAX_BULLETS
    for bullet in bullets:
        assert bullet.startswith("- ")
        assert 2 < len(bullet) <= MAX_BULLET_CHARS + 2
        assert bullet.isprintable()
        assert re.search(r"<[A-Za-z/!?]", bullet) is None
