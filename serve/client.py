"""Asks a served model through OpenAI's client, and for its several ways to an answer.

    python serve/client.py http://127.0.0.1:8000/v1 runs/demo/data/test.parquet

The second argument is a table of puzzles, of which one is asked; MUPO_API_KEY holds the key of a
server that wants one.
"""

from __future__ import annotations

import argparse
import base64
import os
from typing import Any

import httpx
import openai
import pyarrow.parquet as pq


def main(address: str, table: str, row: int = 0) -> None:
    """Ask one puzzle of a table."""
    puzzle = pq.read_table(table).slice(row, 1).to_pylist()[0]
    picture = base64.b64encode(puzzle["images"][0]["bytes"]).decode()
    question = puzzle["problem"].replace("<image>", "").strip()
    messages: Any = [
        {
            "role": "user",
            "content": [
                {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{picture}"}},
                {"type": "text", "text": question},
            ],
        }
    ]
    client = openai.OpenAI(base_url=address, api_key=os.environ.get("MUPO_API_KEY", "none"))
    name = client.models.list().data[0].id

    chat = client.chat.completions.create(model=name, messages=messages, temperature=0)
    print(f"{question}  (right: {puzzle['answer']})")
    print(f"greedy: {chat.choices[0].message.content}")

    asked = {"messages": messages, "n": 8, "k": 3}
    found = client.post("/strategies", cast_to=httpx.Response, body=asked).json()
    for group in found["groups"]:
        text = found["responses"][group["representative"]]["text"]
        print(f"group {group['group']} of {group['size']}: {text}")
    for way, vote in found["votes"].items():
        if vote is not None:
            print(f"{way}: {vote['answer']}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("address", help="of the API, ending in /v1")
    parser.add_argument("table", help="Parquet file of puzzles")
    args = parser.parse_args()
    main(args.address, args.table)
