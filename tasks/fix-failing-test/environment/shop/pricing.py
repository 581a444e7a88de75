"""Prices in whole cents, so that nothing is lost to floating point."""


def discounted(cents, percent):
    """The price after a discount of `percent` (0 to 100), rounded to the nearest cent, halves up.

    A percentage outside 0..100 is a ValueError.
    """
    if percent < 0 or percent > 100:
        raise ValueError("percent must be between 0 and 100")
    return cents - cents * percent // 100


def cart_total(lines, coupon=0):
    """The total of `lines`, pairs of (cents, quantity), after a coupon of `coupon` percent on the whole.

    From ten pieces of one line on, each piece of that line costs 5 percent less (per piece, rounded).
    """
    total = 0
    for cents, quantity in lines:
        if quantity > 10:
            cents = discounted(cents, 5)
        total += cents * quantity
    return discounted(total, coupon)


def split_evenly(total, people):
    """`total` cents in `people` shares that differ by at most one cent, larger ones first; they add up to `total`.

    No people is a ValueError.
    """
    if people == 0:
        raise ValueError("nobody to pay")
    share = total // people
    return [share] * people
