import json

import pytest

from keras_elmo.cli import main
from keras_elmo.utils import cpu

CPU_INFO = (
    "processor : 0\nmodel name\t: A CPU\nflags\t\t: fpu avx2 {}\n\nprocessor : 1\nflags : fpu\n"
)


@pytest.mark.parametrize(
    "flags, words",
    [
        ("avx512f amx_bf16 avx512_bf16", "pays in batches: the CPU has amx_bf16"),
        ("avx512f avx512_bf16", "pays a little in batches: the CPU has avx512_bf16"),
        ("avx512f", "does not pay"),
    ],
)
def test_info_says_whether_bfloat16_pays(tiny_preset, tmp_path, monkeypatch, capsys, flags, words):
    (tmp_path / "cpuinfo").write_text(CPU_INFO.format(flags))
    monkeypatch.setattr(cpu, "_CPU_INFO", tmp_path / "cpuinfo")
    assert cpu.cpu_flags()[0] == "avx2"
    assert main(["info", str(tiny_preset), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["bfloat16"].startswith(words)


def test_int8_overflows_without_its_instructions():
    assert cpu.overflows_in_int8(None)
    for flags in (["avx2"], ["avx2", "avx512f"]):
        assert cpu.overflows_in_int8(flags) and "pays little" in cpu.advise(flags)["int8"]
    for flags in (["avx_vnni"], ["avx512f", "avx512_vnni"]):
        assert not cpu.overflows_in_int8(flags) and "pays: " in cpu.advise(flags)["int8"]


def test_systems_without_this_information(tmp_path, monkeypatch):
    monkeypatch.setattr(cpu, "_CPU_INFO", tmp_path / "none")
    assert cpu.cpu_flags() is None
    assert all(words.startswith("unknown") for words in cpu.advise(None).values())
