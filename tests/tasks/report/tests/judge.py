import json
import os

rewards = {"sum": 0, "names": 0, "note": 0, "apart": 0}
try:
    with open("/app/report.json") as file:
        report = json.load(file)
    rewards["sum"] = int(report.get("sum") == 17)
    rewards["names"] = int(report.get("names") == ["apples", "pears", "plums"])
except (OSError, ValueError, AttributeError) as error:
    print(error)
try:
    notes = [name for name in os.listdir("/app/notes") if os.path.getsize(f"/app/notes/{name}") >= int(os.environ["LEAST"])]
    rewards["note"] = int(bool(notes))
except OSError as error:
    print(error)
# The hook ran in the agent's sandbox; a file of the agent's that is no artifact is not here.
with open("/logs/artifacts/listing") as file:
    listing = file.read().split()
rewards["apart"] = int("figures.csv" in listing and not os.path.exists("/app/secret-of-the-agent"))
right = [rewards["sum"], rewards["names"], rewards["note"]]
rewards["reward"] = sum(right) / len(right) if rewards["apart"] else 0
with open("/logs/verifier/reward.json", "w") as file:
    json.dump(rewards, file)
