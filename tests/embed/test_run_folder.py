import json

import pytest

from keras_elmo.embed.run_folder import claim_folder, stored_settings


def test_a_run_that_wrote_nothing_leaves_its_folder_free(tmp_path):
    folder = tmp_path / "out"
    for resume in (False, True, False):
        claim_folder(folder, {"preset": resume}, resume)
        assert stored_settings(folder) == {"preset": resume}
    (folder / "_settings.json").rename(folder / "_settings.json.1.tmp")  # Killed at once.
    claim_folder(folder, {"preset": "x"}, resume=False)


def test_a_run_is_resumed_with_its_settings(tmp_path):
    settings = {"layers": (1, 2), "dtype": "float32"}
    claim_folder(tmp_path, settings, resume=False)
    (tmp_path / "part").touch()
    claim_folder(tmp_path, settings, resume=True)
    with pytest.raises(ValueError, match=r"contains the files of an earlier run. .*resume=True"):
        claim_folder(tmp_path, settings, resume=False)
    message = "Expected: {'dtype': 'float32'}. Received: {'dtype': 'int8'}. Use the earlier"
    with pytest.raises(ValueError, match=message):
        claim_folder(tmp_path, {**settings, "dtype": "int8"}, resume=True)
    for damaged in ("[" * 10_000, "", json.dumps([1])):
        (tmp_path / "_settings.json").write_text(damaged)
        with pytest.raises(OSError, match="_settings.json is damaged. .* Remove "):
            claim_folder(tmp_path, settings, resume=True)


def test_a_folder_of_other_files_is_refused(tmp_path):
    (tmp_path / "mine.txt").touch()
    with pytest.raises(ValueError, match="would write to, contains other files. Remove it, or"):
        claim_folder(tmp_path, {}, resume=True)
    assert stored_settings(tmp_path) == {}
