"""What a site tells when it is asked."""
