import pytest

from cadenza.benchmark.cells import cell_path, find_missing_cells, read_cell, write_cell
from cadenza.core.errors import IntegrityError
from cadenza.core.files import canonical_json, sha256_bytes
from tests.campaigns import size
from tests.unit.benchmark.samples import make_cell_episodes, make_plan

PLAN = make_plan()
KEYS = list(PLAN.cells)


def store(folder, key):
    cell = PLAN.cells[key]
    write_cell(folder, key, cell, make_cell_episodes(PLAN, cell))
    return cell_path(folder, key)


def test_cell_round_trips_and_writing_twice_gives_equal_bytes(tmp_path):
    path = store(tmp_path, KEYS[0])
    first = path.read_bytes()
    assert read_cell(tmp_path, KEYS[0], PLAN) == make_cell_episodes(PLAN, PLAN.cells[KEYS[0]])
    store(tmp_path, KEYS[0])
    assert path.read_bytes() == first


def test_any_changed_byte_of_a_cell_is_noticed(tmp_path):
    path = store(tmp_path, KEYS[0])
    good = path.read_bytes()
    for position in range(0, len(good), size(5, 1)):
        path.write_bytes(good[:position] + bytes([good[position] ^ 1]) + good[position + 1 :])
        with pytest.raises(IntegrityError):
            read_cell(tmp_path, KEYS[0], PLAN)


def test_any_truncation_of_a_cell_is_noticed(tmp_path):
    path = store(tmp_path, KEYS[0])
    good = path.read_bytes()
    for length in range(0, len(good), size(5, 1)):
        path.write_bytes(good[:length])
        with pytest.raises(IntegrityError):
            read_cell(tmp_path, KEYS[0], PLAN)


def test_cell_under_the_name_of_another_is_refused(tmp_path):
    store(tmp_path, KEYS[0]).rename(cell_path(tmp_path, KEYS[1]))
    with pytest.raises(IntegrityError, match="got another one"):
        read_cell(tmp_path, KEYS[1], PLAN)


def test_cell_with_an_episode_from_another_start_is_refused(tmp_path):
    cell = PLAN.cells[KEYS[0]]
    episodes = make_cell_episodes(PLAN, cell)
    episodes[1] = episodes[1].model_copy(update={"initial_state_seed": 1})
    write_cell(tmp_path, KEYS[0], cell, episodes)
    with pytest.raises(IntegrityError, match="episodes that differ"):
        read_cell(tmp_path, KEYS[0], PLAN)


def test_cell_with_an_episode_of_another_condition_is_refused(tmp_path):
    cell = PLAN.cells[KEYS[0]]
    episodes = [
        e.model_copy(update={"condition": "filter_off"}) for e in make_cell_episodes(PLAN, cell)
    ]
    write_cell(tmp_path, KEYS[0], cell, episodes)
    with pytest.raises(IntegrityError, match="expected its own episodes"):
        read_cell(tmp_path, KEYS[0], PLAN)


def test_resume_is_the_set_of_cells_without_a_whole_file(tmp_path):
    for key in KEYS[:4]:
        store(tmp_path, key)
    torn = cell_path(tmp_path, KEYS[2])
    torn.write_bytes(torn.read_bytes()[:-10])
    state = find_missing_cells(tmp_path, PLAN)
    assert state.done == (KEYS[0], KEYS[1], KEYS[3])
    assert state.missing == (KEYS[2], *KEYS[4:])
    assert list(state.damaged) == [KEYS[2]]


def test_cell_with_a_malformed_episode_is_refused_even_with_a_right_checksum(tmp_path):
    path = store(tmp_path, KEYS[0])
    header, *episodes, _ = path.read_bytes().splitlines(keepends=True)
    body = header + b'{"seed":0}\n' + b"".join(episodes[1:])
    closing = canonical_json({"episodes": len(episodes), "sha256": sha256_bytes(body)})
    path.write_bytes(body + closing + b"\n")
    with pytest.raises(IntegrityError, match="line 2: expected an episode"):
        read_cell(tmp_path, KEYS[0], PLAN)
