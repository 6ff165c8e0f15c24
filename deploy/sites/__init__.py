"""Sites on separate machines: keys, certificates, their programs."""
