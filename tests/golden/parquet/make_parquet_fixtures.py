"""Parquet files by pyarrow, and the rows in them as JSON lines. Made with pyarrow 26.0.1.

    pip install pyarrow && python make_parquet_fixtures.py

rows.jsonl has the rows of every texts_*.parquet, chats.jsonl those of every chats_*.parquet: top-level nulls
are kept, null members of structs are left out.
"""
import json
import os

import pyarrow as pa
import pyarrow.parquet as pq

here = os.path.dirname(os.path.abspath(__file__))
path = lambda name: os.path.join(here, name)


def text_rows():
    rows = []
    for i in range(60):
        text = [f"row {i} ", "", "héllo \u4e16\u754c \U0001f600", 'quote " and \\ and\ttab\r\nline', "a" * 300][i % 5]
        rows.append({
            "text": None if i % 17 == 16 else text + (str(i) if i % 3 else ""),
            "id": i * 10**12 - 5,
            "small": -i if i % 4 else None,
            "score": i / 7 if i % 5 else None,
            "flag": None if i % 6 == 5 else i % 3 == 0,
            "tags": None if i % 9 == 8 else [None if t == 2 else f"t{t % 3}" for t in range(i % 5)],
            "deep": [[str(a * b) for a in range(b)] for b in range(i % 4)],
            "same": "always the same",
        })
    return rows


text_schema = pa.schema([
    ("text", pa.string()), ("id", pa.int64()), ("small", pa.int32()), ("score", pa.float64()), ("flag", pa.bool_()),
    ("tags", pa.list_(pa.string())), ("deep", pa.list_(pa.list_(pa.string()))),
    pa.field("same", pa.string(), nullable=False),
])


def chat_rows():
    rows = []
    for i in range(24):
        messages = [{"role": "user", "content": f"question {i} ä"}, {"role": "assistant", "content": f"answer {i}"}]
        if i % 5 == 3:
            messages.insert(0, {"role": "system", "content": "be short", "weight": 0.5})
        if i % 7 == 6:
            messages = []
        if i % 11 == 10:
            messages = None
        if i % 4 == 1 and messages:
            messages[-1] = {"role": "assistant", "content": None, "tools": [{"name": "f", "args": ["a", "b"]}, {"name": "g"}]}
        rows.append({"messages": messages, "source": f"set {i % 2}"})
    return rows


tool = pa.struct([("name", pa.string()), ("args", pa.list_(pa.string()))])
message = pa.struct([("role", pa.string()), ("content", pa.string()), ("weight", pa.float32()), ("tools", pa.list_(tool))])
chat_schema = pa.schema([("messages", pa.list_(message)), ("source", pa.string())])


def without_nulls(value, top=True):
    if isinstance(value, dict):
        return {k: without_nulls(v, False) for k, v in value.items() if top or v is not None}
    return [without_nulls(v, False) for v in value] if isinstance(value, list) else value


def write(name, rows, schema, **options):
    table = pa.Table.from_pylist(rows, schema=schema)
    pq.write_table(table, path(name), **options)
    return table


rows, chats = text_rows(), chat_rows()
cases = {
    "snappy_v1": dict(compression="snappy", data_page_version="1.0"),
    "zstd_v2": dict(compression="zstd", data_page_version="2.0", write_page_checksum=True),
    "gzip_plain": dict(compression="gzip", use_dictionary=False, row_group_size=7),
    "none_pages": dict(compression="none", data_page_size=64, write_batch_size=4, row_group_size=25),
    "plain_v2": dict(compression="snappy", data_page_version="2.0", use_dictionary=False, data_page_size=64,
                     write_batch_size=3, use_compliant_nested_type=False),
}
for name, options in cases.items():
    table = write(f"texts_{name}.parquet", rows, text_schema, **options)
    write(f"chats_{name}.parquet", chats, chat_schema, **options)
write("delta.parquet", rows, text_schema, use_dictionary=False, column_encoding={"text": "DELTA_BYTE_ARRAY"})
write("brotli.parquet", rows, text_schema, compression="brotli")
write("empty.parquet", [], text_schema)
with open(path("rows.jsonl"), "w") as out:
    out.writelines(json.dumps(without_nulls(row)) + "\n" for row in table.to_pylist())
with open(path("chats.jsonl"), "w") as out:
    chat_table = pa.Table.from_pylist(chats, schema=chat_schema)
    out.writelines(json.dumps(without_nulls(row)) + "\n" for row in chat_table.to_pylist())
