"""Between prefill and decode: what waits, what is sent, what is taken up again."""
