"""fp8 by blocks of 128 x 128, from the formula alone (standard library only):
scale = max(largest magnitude, 1e-4) / 448, value = f8e4m3(x / scale) to nearest even, all in f32. Finite bf16 weights."""
import math
import struct

BLOCK = 128


def f32(x):
    return struct.unpack("<f", struct.pack("<f", x))[0]


def f8e4m3(x):
    """The byte of the f8e4m3 (no infinities) that is nearest to x."""
    sign, a = (0x80, -x) if math.copysign(1.0, x) < 0 else (0, x)
    exponent = max(math.frexp(a)[1] - 1, -6) if a > 0 else -6
    steps = round(math.ldexp(a, 3 - exponent))  # of 2^(exponent - 3): whole eighths; Python rounds to even
    if steps == 16:
        exponent, steps = exponent + 1, 8
    if exponent > 8 or exponent == 8 and steps > 14:
        return sign | 0x7E
    return sign | (steps if steps < 8 else (exponent + 7) << 3 | steps - 8)


def quantised(tensor):
    """(values, scales) of a bf16 tensor, a matrix or one for each expert."""
    dtype, shape, content = tensor
    assert dtype == "BF16", dtype
    matrices = 1 if len(shape) == 2 else shape[0]
    rows, columns = shape[-2:]
    weights = [struct.unpack("<f", b"\0\0" + content[i:i + 2])[0] for i in range(0, len(content), 2)]
    values, scales = bytearray(len(weights)), []
    for matrix in range(matrices):
        for top in range(0, rows, BLOCK):
            for left in range(0, columns, BLOCK):
                places = [(matrix * rows + y) * columns + x for y in range(top, min(top + BLOCK, rows))
                          for x in range(left, min(left + BLOCK, columns))]
                scale = f32(max(max(abs(weights[p]) for p in places), f32(1e-4)) / 448)
                scales.append(scale)
                known = {}
                for p in places:
                    weight = weights[p]
                    if weight not in known or weight == 0:
                        known[weight] = f8e4m3(f32(weight / scale))
                    values[p] = known[weight]
    blocks = (-(-rows // BLOCK), -(-columns // BLOCK))
    return ("F8_E4M3", shape, bytes(values)), ("F32", (*shape[:-2], *blocks), struct.pack(f"<{len(scales)}f", *scales))


def kernel_format(parameters):
    """What a worker with --hook fp8-blocks holds in place of `parameters` (name -> tensor)."""
    out = {}
    for name, tensor in parameters.items():
        linear = len(tensor[1]) == 2 and name.endswith("_proj.weight")
        experts = len(tensor[1]) == 3 and name.endswith(("w13_weight", "w2_weight"))
        if linear or experts:
            out[name], out[name + "_scale_inv"] = quantised(tensor)
        else:
            out[name] = tensor
    return out


def check():
    """Known encodings: powers of two, halves between neighbours, the largest, the smallest, and what is beyond."""
    for x, byte in ((0.0, 0x00), (1.0, 0x38), (-1.0, 0xB8), (1.0625, 0x38), (1.1875, 0x3A), (448.0, 0x7E), (460.0, 0x7E), (464.0, 0x7E), (1000.0, 0x7E),
                    (2.0 ** -9, 0x01), (2.0 ** -10, 0x00), (1.5 * 2.0 ** -9, 0x02), (2.0 ** -6, 0x08), (15.5 * 2.0 ** -10, 0x08)):
        assert f8e4m3(x) == byte, (x, hex(f8e4m3(x)), hex(byte))


check()
