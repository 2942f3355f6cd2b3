"""The other files of an exported run: model card, curve and log."""

import pytest

from keras_elmo.pretraining.export import _draw_curve, export_run

HEADER = "step,tokens,seconds,learning_rate,loss,perplexity,skipped,change\n"


@pytest.mark.parametrize("perplexities", [("9.5", "8.5"), ("9.5", ""), ("", "8.5"), ("", ""), ()])
def test_the_curve_of_a_run_whose_heldout_text_came_or_went(perplexities, tmp_path):
    rows = [f"{i},{i}000,1.0,0.1,2.5,{p},0,\n" for i, p in enumerate(perplexities, 1)]
    (tmp_path / "log.csv").write_text(HEADER + "".join(rows))
    _draw_curve(tmp_path / "log.csv", tmp_path / "curve.png")
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")


def test_one_heldout_text_need_not_be_in_a_list(tmp_path):
    (tmp_path / "empty.txt").write_text("\n")
    for path in (tmp_path / "empty.txt", str(tmp_path / "empty.txt")):
        with pytest.raises(ValueError, match=f"tokenised sentences. Received: none in {path}"):
            export_run(tmp_path / "run", tmp_path / "preset", heldout=path)
