"""A reader and a writer of safetensors files, written from the format alone (standard library only).

A tensor here is (dtype name of the format, shape tuple, bytes)."""
import json
import os
import struct

SIZES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "F8_E4M3": 1, "F8_E5M2": 1, "I64": 8, "I32": 4, "I16": 2, "I8": 1,
         "U64": 8, "U32": 4, "U16": 2, "U8": 1, "BOOL": 1}


def elements(shape):
    count = 1
    for size in shape:
        count *= size
    return count


def read(path):
    """name -> tensor, and the metadata."""
    with open(path, "rb") as stream:
        data = stream.read()
    (length,) = struct.unpack_from("<Q", data, 0)
    header = json.loads(data[8:8 + length])
    metadata = header.pop("__metadata__", {})
    tensors, spans = {}, []
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        content = data[8 + length + begin:8 + length + end]
        assert len(content) == end - begin == elements(entry["shape"]) * SIZES[entry["dtype"]], f"{path}: {name}"
        tensors[name] = (entry["dtype"], tuple(entry["shape"]), content)
        spans.append((begin, end))
    spans.sort()
    at = 0
    for begin, end in spans:
        assert begin == at, f"{path}: a gap or an overlap at byte {at} of the data"
        at = end
    assert 8 + length + at == len(data), f"{path}: bytes behind the data"
    return tensors, metadata


def write(path, tensors, metadata=None):
    """Writes them in the order of the dict."""
    header, at = {}, 0
    if metadata:
        header["__metadata__"] = metadata
    for name, (dtype, shape, content) in tensors.items():
        assert len(content) == elements(shape) * SIZES[dtype], name
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + len(content)]}
        at += len(content)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as stream:
        stream.write(struct.pack("<Q", len(text)) + text)
        for _, _, content in tensors.values():
            stream.write(content)


def read_checkpoint(directory):
    """All tensors of a Hugging Face directory, and its config."""
    tensors = {}
    for name in sorted(os.listdir(directory)):
        if name.endswith(".safetensors"):
            tensors.update(read(os.path.join(directory, name))[0])
    with open(os.path.join(directory, "config.json"), encoding="utf-8") as stream:
        return tensors, json.load(stream)
