from cadenza.loop.events import EventPage, read_events
from cadenza.loop.events.bus import MAX_PAYLOAD_BYTES


def test_pages_follow_one_another_by_offset(tmp_path):
    path = tmp_path / "events.jsonl"
    path.write_bytes(b'{"seq": 1}\n{"seq": 2}\n{"seq": 3}\n')
    first = read_events(path, 0, 2)
    assert first == EventPage(events=({"seq": 1}, {"seq": 2}), next_offset=22)
    second = read_events(path, first.next_offset, 2)
    assert second == EventPage(events=({"seq": 3},), next_offset=33)
    assert read_events(path, 33) == EventPage(events=(), next_offset=33)


def test_unfinished_line_is_left_for_later(tmp_path):
    path = tmp_path / "events.jsonl"
    path.write_bytes(b'{"seq": 1}\n{"seq"')
    page = read_events(path)
    assert page == EventPage(events=({"seq": 1},), next_offset=11)
    with path.open("ab") as file:
        file.write(b": 2}\n")
    assert read_events(path, page.next_offset).events == ({"seq": 2},)


def test_damaged_lines_are_skipped_and_counted(tmp_path):
    path = tmp_path / "events.jsonl"
    path.write_bytes(b'garbage\n{"a": NaN}\n[1]\n\xff\n{"seq": 1}\n')
    assert read_events(path) == EventPage(
        events=({"seq": 1},), next_offset=path.stat().st_size, skipped=4
    )


def test_overlong_line_is_skipped(tmp_path):
    path = tmp_path / "events.jsonl"
    longer = b"y" * (MAX_PAYLOAD_BYTES + (1 << 16))
    path.write_bytes(b'{"x": "' + longer + b'"}\n{"seq": 2}\n{"z": "' + longer)
    page = read_events(path)
    assert (page.events, page.skipped) == (({"seq": 2},), 1)
    assert page.next_offset == len(longer) + 10 + 11
