"""The result files that other reports repeat: read as they are written now and as earlier versions wrote them."""

import pytest

from asmil.errors import AsmilError
from asmil.evaluation.result_files import EvaluationFile, attention_results, read_localization, read_result
from frozen.cases import OUTPUTS

LOCALIZED, STABLE = OUTPUTS / "localize" / "run", OUTPUTS / "stability" / "calm"


@pytest.mark.parametrize("word", ["metrics", "measures"])
def test_files_of_this_and_of_earlier_versions_are_read(tmp_path, word):
    (tmp_path / "localization").mkdir()
    for source, name in ((LOCALIZED, "localization/localization.json"), (STABLE, "stability.json")):
        (tmp_path / name).write_text((source / name).read_text().replace('"metrics"', f'"{word}"'))
    results, problems = attention_results(tmp_path)
    assert [title for _, _, title, _, _ in results] == ["effective share", "late JSD", "FROC", "Dice", "tile AUC"]
    assert not problems
    assert results[-1][-1] == read_localization(tmp_path).tile_auc
    assert results[-1][-1].estimate.interval.is_defined


def test_a_damaged_file_is_named_and_the_others_are_read(tmp_path):
    (tmp_path / "stability.json").write_text((STABLE / "stability.json").read_text())
    (tmp_path / "localization").mkdir()
    (tmp_path / "localization" / "localization.json").write_text('{"metrics": {}}')
    results, problems = attention_results(tmp_path)
    assert len(results) == 2
    assert len(problems) == 1
    assert "localization.json" in problems[0]
    assert "tile_auc" in problems[0]
    (tmp_path / "evaluation.json").write_text("{")
    with pytest.raises(AsmilError, match=r"evaluation\.json"):
        read_result(tmp_path / "evaluation.json", EvaluationFile, "asmil evaluate")


def test_evaluations_of_every_task_are_read():
    files = sorted(OUTPUTS.glob("evaluate_*/**/evaluation.json"))
    assert files
    assert all(read_result(file, EvaluationFile, "asmil evaluate").metrics for file in files)
