"""Write the seeds: files that once broke a reader, from which the fuzzer also starts.

`python tests/reliability/fuzz/make_seeds.py` makes all but those that atheris found, which are kept as they are.
"""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import numpy as np

HERE = Path(__file__).parent
sys.path.append(str(HERE))

from fuzz import Place  # noqa: E402
from targets import TARGETS  # noqa: E402


def npy(header: str, data: bytes = b"") -> bytes:
    text = header.encode().ljust(118 - 1) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + data


def npz(**arrays: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()


def letters(code: int) -> bytes:
    """An array of strings with a letter that Unicode does not have."""
    return npy("{'descr': '<U1', 'fortran_order': False, 'shape': (6,), }", code.to_bytes(4, "little") * 6)


def changed(sound: bytes, **values: object) -> bytes:
    return json.dumps({**json.loads(sound), **values}).encode()


def trees(sound: bytes, **arrays: np.ndarray) -> bytes:
    """An audit's model with other arrays; where one has length 3, each node's is repeated."""
    from safetensors.numpy import load, save

    size = int.from_bytes(sound[:8], "little")
    found = load(sound)
    for name, array in arrays.items():
        found[name] = np.resize(array, len(found[name])) if len(array) else array
    return save(found, json.loads(sound[8 : 8 + size])["__metadata__"])


def seeds(name: str, sound: bytes) -> dict[str, bytes]:
    """What else this target starts from."""
    size = (1 << 31).to_bytes(4, "big")
    latin = sound[: len(sound) // 2] + "é".encode("latin-1") + sound[len(sound) // 2 :]
    unfinished = npy("{'descr': '<f4', 'fortran_order': True, 'shape': (5, 3")
    return {
        "idx": {"sizes_that_overflow": b"\x00\x00\x08\x03" + size + size + (4).to_bytes(4, "big")},
        "epochs": {"cut": sound[:-20], "not_json": b"{'epoch': 1}\n", "text_for_number": sound.replace(b"0", b'"0"')},
        "history": {"unfinished_header": unfinished},
        "losses_npy": {"unfinished_header": unfinished, "not_a_zip": b"PK\x03\x04not a zip"},
        "labels_npy": {"no_letter": letters(0xFFFFFFFF), "unfinished_header": unfinished},
        "config": {"stages_of_text": changed(sound, stages="x"), "outside": sound.replace(b'"folder": "', b'"folder": "../')} if name == "config" else {},
        "metrics": {"no_scores": changed(sound, test={}), "deep": b"[" * 100_000} if name == "metrics" else {},
        "predict_config": {"model_of_number": sound.replace(b'"linear"', b"3"), "no_inputs": changed(sound, inputs={})} if name == "predict_config" else {},
        "manifest": {"lone_surrogate": b'{"digest": "\\ud800", "chunks": ["\\ud800"]}'},
        "partition": {"other_labels": npz(minority=np.zeros(2, bool), labels=np.arange(3)), "not_arrays": b"PK\x05\x06" + bytes(18)},
        "predictions": {"not_arrays": b"PK\x05\x06" + bytes(18)},
        "dynamics": {"no_stages": b'{"clusters": []}', "huge": sound.replace(b'"size": ', b'"size": 1' + b"0" * 400), "deep": b"[" * 200_000},
        "timing": {"huge": b'{"seconds": 1' + b"0" * 400 + b', "stages": {}, "unshared": 1}', "nan": b'{"seconds": NaN, "stages": {}, "unshared": 1}'},
        "checksums": {"other_file": b'{"files": {"../../secret": "0"}, "stages": {}}', "empty": b'{"files": {}, "stages": {}}'},
        "audit_trees": {"no_start": trees(sound, start=np.zeros(0)), "other_type": trees(sound, leaf=np.zeros(3, np.float32)), "not_numbers": trees(sound, value=np.full(3, np.nan))} if name == "audit_trees" else {},
        "audit_summary": {"no_model": b'{"ship": {}, "data": {}}', "deep": b"[" * 200_000},
        "hub_index": {"empty": b"{}", "no_weights": b'{"weight_map": {}}', "outside": b'{"weight_map": {"a": "../b.safetensors"}}', "deep": b"[" * 200_000},
        "payload": {"no_zip": b"\x80\x02}q\x00.", "text": b"hello"},
    }.get(name, {"latin": latin} if name.startswith(("waterbirds", "celeba", "cub_")) and name != "cub_pickle" else {})  # fmt: skip


def main() -> None:
    for target in TARGETS:
        place = Place(target)
        for name, data in seeds(target.name, place.original).items():
            file = HERE / "seeds" / target.name / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(data)
            place.try_(data)  # read or refused, and no defect any more
        place.close()


if __name__ == "__main__":
    main()
