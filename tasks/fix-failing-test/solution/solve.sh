#!/bin/bash
set -eu
cd /app
python3 - <<'PY'
from pathlib import Path
path = Path("shop/pricing.py")
text = path.read_text()
text = text.replace("return cents - cents * percent // 100", "return (cents * (100 - percent) + 50) // 100")
text = text.replace("if quantity > 10:", "if quantity >= 10:")
text = text.replace("    share = total // people\n    return [share] * people\n",
                    "    share, left = divmod(total, people)\n    return [share + 1] * left + [share] * (people - left)\n")
path.write_text(text)
PY
python3 -m unittest
