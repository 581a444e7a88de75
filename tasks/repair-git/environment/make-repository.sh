#!/bin/sh
# Builds the repository in the state the task describes.
set -eu
git init -q -b main project
cd project
commit() {
    GIT_AUTHOR_DATE="2026-03-0$1T10:00:00Z" GIT_COMMITTER_DATE="2026-03-0$1T10:00:00Z" git commit -q -m "$2"
}
cat > total.py <<'PY'
PRICES = [9.99, 12.48]


def total():
    return sum(PRICES)


print("total:", total())
PY
git add total.py
commit 1 "Add the total"

git checkout -q -b rounding
sed -i 's/return sum(PRICES)/return round(sum(PRICES), 2)/' total.py
git add total.py
commit 2 "Round the total"

git checkout -q main
printf 'country,percent\nde,19\nfr,20\nnl,21\n' > taxes.csv
git add taxes.csv
commit 3 "Add the tax table"
git reset -q --hard HEAD~1

sed -i 's/^PRICES = .*/&\nSHIPPING = 4.88/; s/return sum(PRICES)/return sum(PRICES) + SHIPPING/' total.py
git add total.py
commit 4 "Add shipping costs"
git merge -q rounding > /dev/null 2>&1 && exit 1
git status --porcelain | grep -q '^UU total.py'
