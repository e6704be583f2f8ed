"""Services of one participant, which answer messages. Policies, identities and sealing are added around them if needed."""
