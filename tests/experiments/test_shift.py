import pytest

from kmifqe.errors import InputError
from kmifqe.experiments import fig1a, fig1b, fig2, shift
from kmifqe.experiments.presets import PRESETS


@pytest.mark.parametrize("preset", PRESETS.values(), ids=lambda preset: preset.name)
@pytest.mark.parametrize("module", [fig1a, fig1b, fig2, shift], ids=lambda module: module.EXPERIMENT)
def test_rows_are_there_once_and_name_files(module, preset):
    rows = module.rows(preset)
    assert rows
    assert len(set(rows)) == len(rows)
    assert all(row.replace("-", "").replace(".", "").isalnum() for row in rows)


@pytest.mark.parametrize("preset", PRESETS.values(), ids=lambda preset: preset.name)
def test_shift_rows_form_a_cross(preset):
    sizes = shift.SIZES[preset.name]
    logs = [shift.log_of(row) for row in shift.rows(preset)]
    assert all(log.width == sizes.usual_width or log.rows == sizes.usual_rows for log in logs)
    assert {log.width for log in logs} >= set(sizes.widths)
    assert {log.rows for log in logs} >= set(sizes.lengths)


def test_an_unknown_shift_row_is_refused():
    with pytest.raises(InputError, match="width-WIDTH-rows-ROWS"):
        shift.log_of("hopper")
