#!/usr/bin/env python3
"""Conversions and block quantisation on the GPU against PyTorch's, bit by bit (any NaN is a NaN).

    tests/cuda/pytorch_test.py CUDA_REFERENCE      the program of tests/cuda/reference.cc

Exits with 77, saying why, where there is no PyTorch or no GPU.
"""

import pathlib
import subprocess
import sys
import tempfile

SKIPPED = 77

try:
    import torch
except ImportError:
    print("skipped: this Python has no PyTorch")
    sys.exit(SKIPPED)

TYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}


def bits(tensor):
    return tensor.contiguous().view(torch.uint8 if tensor.element_size() == 1 else
                                    torch.int16 if tensor.element_size() == 2 else torch.int32)


class Reference:
    def __init__(self, program, folder):
        self.program = program
        self.folder = pathlib.Path(folder)

    def run(self, *arguments):
        done = subprocess.run([self.program, *map(str, arguments)], stderr=subprocess.PIPE, text=True, timeout=100)
        if done.returncode == SKIPPED:
            print("skipped:", done.stderr.strip())
            sys.exit(SKIPPED)
        if done.returncode != 0:
            sys.exit(f"{' '.join(map(str, arguments))}: {done.stderr.strip()}")

    def write(self, tensor):
        path = self.folder / "in"
        path.write_bytes(bits(tensor).numpy().tobytes())
        return path

    def read(self, name, dtype):
        return torch.frombuffer(bytearray((self.folder / name).read_bytes()), dtype=dtype)

    def cast(self, values, source, target):
        self.run("cast", source, target, self.write(values), self.folder / "out")
        return self.read("out", TYPES[target])

    def quantise(self, values, source):
        matrices, rows, columns = values.shape
        self.run("quantise", source, matrices, rows, columns, self.write(values), self.folder / "values",
                 self.folder / "scales")
        scales = self.read("scales", torch.float32).view(matrices, -(-rows // 128), -(-columns // 128))
        return self.read("values", torch.uint8).view(values.shape), scales


def check_equal(what, found, expected):
    nan = expected.isnan()
    if not torch.equal(found.isnan(), nan):
        sys.exit(f"{what}: NaNs at other places than PyTorch's")
    wrong = (bits(found) != bits(expected)) & ~nan.view(-1)
    if wrong.any():
        at = wrong.nonzero()[0].item()
        sys.exit(f"{what}: element {at} is {found[at].item()}, PyTorch's is {expected[at].item()}; "
                 f"{wrong.sum().item()} differ")
    print(f"{what}: {found.numel()} equal")


def all_of_16_bits(dtype):
    return torch.arange(65536, dtype=torch.int32).to(torch.int16).view(dtype)


def quantised(values):
    """The formula, in PyTorch, block by block."""
    matrices, rows, columns = values.shape
    scales = torch.empty(matrices, -(-rows // 128), -(-columns // 128))
    out = torch.empty(values.shape, dtype=torch.uint8)
    for m in range(matrices):
        for r in range(scales.shape[1]):
            for c in range(scales.shape[2]):
                at = (m, slice(128 * r, 128 * r + 128), slice(128 * c, 128 * c + 128))
                block = values[at].float()
                amax = torch.maximum(block.abs().amax(), torch.tensor(1e-4))
                scale = amax / 448.0
                q = (block / scale).clamp(-448.0, 448.0)  # saturating; clamp keeps NaN
                out[at] = q.to(torch.float8_e4m3fn).view(torch.uint8)
                scales[m, r, c] = scale
    return out, scales


def check_quantised(what, reference, values, source):
    found, found_scales = reference.quantise(values, source)
    expected, expected_scales = quantised(values)
    check_equal(f"{what}, scales", found_scales.view(-1), expected_scales.view(-1))
    nan = (expected & 0x7F) == 0x7F
    if not torch.equal((found & 0x7F) == 0x7F, nan):
        sys.exit(f"{what}: NaNs at other places than PyTorch's")
    wrong = (found != expected) & ~nan
    if wrong.any():
        at = tuple(wrong.nonzero()[0].tolist())
        sys.exit(f"{what}: element {at} is {found[at].item():#x}, PyTorch's is {expected[at].item():#x}; "
                 f"{wrong.sum().item()} differ")
    print(f"{what}: {found.numel()} equal")


def main(program):
    torch.manual_seed(1)
    with tempfile.TemporaryDirectory() as folder:
        reference = Reference(program, folder)
        bf16 = all_of_16_bits(torch.bfloat16)
        f16 = all_of_16_bits(torch.float16)
        wide = torch.cat([bits(bf16.float()) + low for low in (0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF)]).view(torch.float32)
        near_f16 = torch.cat([bits(f16.float()) + low for low in (0, 1, 0xFFF, 0x1000, 0x1001, 0x1FFF)]).view(torch.float32)
        random = torch.randint(-2**31, 2**31 - 1, (1 << 22,), dtype=torch.int32).view(torch.float32)
        for source, target, values in [("bf16", "f32", bf16), ("bf16", "f16", bf16), ("f16", "f32", f16),
                                       ("f16", "bf16", f16), ("f32", "bf16", wide), ("f32", "f16", wide),
                                       ("f32", "f16", near_f16), ("f32", "bf16", random), ("f32", "f16", random)]:
            check_equal(f"{source} to {target}", reference.cast(values, source, target), values.to(TYPES[target]))

        for source, dtype in TYPES.items():
            normal = torch.randn(2, 300, 520)
            spread = torch.randn(1, 256, 512) * torch.exp2(torch.rand(1, 256, 512) * 20 - 10)
            tied = torch.randint(-2 * 448, 2 * 448, (1, 256, 256)).float() / 2
            tied[:, ::128, ::128] = 448.0
            check_quantised(f"quantised {source}", reference, normal.to(dtype), source)
            check_quantised(f"quantised {source}, wide range", reference, spread.to(dtype), source)
            check_quantised(f"quantised {source}, ties", reference, tied.to(dtype), source)
            odd = torch.randn(1, 128, 896)
            odd[0, 3, 5] = torch.finfo(dtype).max
            odd[0, :, 128:256] = torch.finfo(dtype).tiny / 4
            odd[0, 4, 300] = float("nan")
            odd[0, 5, 400] = float("inf")
            odd[0, 6, 520] = -float("inf")
            odd[0, :, 640:768] = -0.0
            check_quantised(f"quantised {source}, extremes", reference, odd.to(dtype), source)
        check_quantised("quantised bf16, all values", reference, bf16.view(1, 512, 128), "bf16")
        check_quantised("quantised f32, any bits", reference, random[:1 << 20].view(4, 512, 512), "f32")


if __name__ == "__main__":
    main(sys.argv[1])
