"""The official MCP client for Python against an inlet: what it saw, as one line of JSON. Run by test_mcp.py in an
environment of its own. The case is the client's mode: "auto" finds the newest version, "legacy" begins with initialize."""

import asyncio
import json
import sys

from mcp import Client, MCPError


def shown(result):
    text = " ".join(part.text for part in result.content)
    return {"error": bool(result.is_error), **({"text": text} if result.is_error else {"structured": result.structured_content})}


async def main(mode, base):
    out, progress = {}, []
    async with Client(f"{base}/mcp", mode=mode) as client:
        out.update(server=client.server_info.name, version=client.protocol_version)
        out["tools"] = [tool.model_dump(mode="json", by_alias=True, exclude_none=True) for tool in (await client.list_tools()).tools]
        out["weather"] = shown(await client.call_tool("weather", {"city": "Ulm"}))
        out["broken"] = shown(await client.call_tool("broken", {}))

        async def on_progress(value, total, message):
            progress.append(value)

        out["slow"] = shown(await client.call_tool("weather", {"city": "slow"}, progress_callback=on_progress))
        out["progress"] = len(progress)
        assert progress == sorted(set(progress)), progress
        try:
            await client.call_tool("nothing", {})
        except MCPError as error:
            out["unknown"] = error.code
        several = await asyncio.gather(*(client.call_tool("weather", {"city": city}) for city in "abc"))
        out["together"] = [one.structured_content["city"] for one in several]
        try:  # a call nobody answers, given up
            await asyncio.wait_for(client.call_tool("weather", {"city": "never"}), 1)
        except asyncio.TimeoutError:
            out["given_up"] = True
    print(json.dumps(out))


asyncio.run(main(*sys.argv[1:3]))
