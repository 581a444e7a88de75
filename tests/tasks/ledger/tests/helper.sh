# For every step's test.sh.
sum() {
    total=0
    while read -r amount; do total=$((total + amount)); done < "$1"
    echo $total
}
reward() { echo "$1" > /logs/verifier/reward.txt; }
