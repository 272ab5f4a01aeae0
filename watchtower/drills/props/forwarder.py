"""A TCP forwarder: what it stands for is the network between agents and tower, which can be cut.

Run by path: python -I forwarder.py LISTEN_PORT HOST PORT. Prints its address, runs until ended.
"""

from __future__ import annotations

import asyncio
import sys
from asyncio import StreamReader, StreamWriter

CHUNK_BYTES = 65536


async def _copy(reader: StreamReader, writer: StreamWriter) -> None:
    try:
        while content := await reader.read(CHUNK_BYTES):
            writer.write(content)
            await writer.drain()
    except ConnectionError:
        pass
    finally:
        writer.close()


async def _serve(listen_port: int, host: str, port: int) -> None:
    async def forward(reader: StreamReader, writer: StreamWriter) -> None:
        try:
            far_reader, far_writer = await asyncio.open_connection(host, port)
        except OSError:
            writer.close()
            return
        await asyncio.gather(_copy(reader, far_writer), _copy(far_reader, writer))

    server = await asyncio.start_server(forward, "127.0.0.1", listen_port)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_serve(int(sys.argv[1]), sys.argv[2], int(sys.argv[3])))
