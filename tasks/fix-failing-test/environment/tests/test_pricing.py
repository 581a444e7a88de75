import unittest

from shop.pricing import cart_total, discounted, split_evenly


class Pricing(unittest.TestCase):
    def test_a_discount_is_rounded_to_the_nearest_cent(self):
        self.assertEqual(discounted(1000, 25), 750)
        self.assertEqual(discounted(999, 10), 899)

    def test_ten_pieces_are_cheaper(self):
        self.assertEqual(cart_total([(200, 9)]), 1800)
        self.assertEqual(cart_total([(200, 10)]), 1900)

    def test_shares_add_up(self):
        self.assertEqual(split_evenly(100, 3), [34, 33, 33])


if __name__ == "__main__":
    unittest.main()
