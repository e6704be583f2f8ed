"""Work of one participant, as answers to messages. Policies, identities and sealing wrap it where a site needs them."""
