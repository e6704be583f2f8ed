"""Services of one participant, which answer messages. Policies, identities and encryption are added around them if needed."""
